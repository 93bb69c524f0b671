package com.fasterxml.jackson.core;

import java.io.Closeable;
import java.io.IOException;

public abstract class JsonParser implements Closeable {
  public enum Feature {
    ALLOW_COMMENTS,
    ALLOW_UNQUOTED_FIELD_NAMES,
    ALLOW_SINGLE_QUOTES,
    ALLOW_UNQUOTED_CONTROL_CHARS,
    ALLOW_BACKSLASH_ESCAPING_ANY_CHARACTER,
    ALLOW_NUMERIC_LEADING_ZEROS,
    ALLOW_NON_NUMERIC_NUMBERS
  }

  public abstract JsonToken nextToken() throws IOException;

  public abstract JsonParser skipChildren() throws IOException;

  public abstract String currentName() throws IOException;

  public abstract String getText() throws IOException;

  public abstract JsonLocation currentTokenLocation();

  public abstract JsonLocation currentLocation();

  public void finishToken() throws IOException {}

  @Override
  public abstract void close() throws IOException;
}
