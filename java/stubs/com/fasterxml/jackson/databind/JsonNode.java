package com.fasterxml.jackson.databind;

import java.util.Iterator;

public abstract class JsonNode implements Iterable<JsonNode> {
  public JsonNode get(String field) {
    return null;
  }

  public boolean has(String field) {
    return false;
  }

  public String asText() {
    return null;
  }

  @Override
  public Iterator<JsonNode> iterator() {
    return null;
  }

  public native long asLong();
  public native boolean isIntegralNumber();
  public native boolean isTextual();
  public native JsonNode path(String a);
}
