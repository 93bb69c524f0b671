package com.fasterxml.jackson.core;

public enum JsonToken {
  START_OBJECT,
  END_OBJECT,
  START_ARRAY,
  END_ARRAY,
  FIELD_NAME,
  VALUE_STRING,
  VALUE_NUMBER_INT,
  VALUE_NUMBER_FLOAT,
  VALUE_NULL;

  public final boolean isScalarValue() {
    return false;
  }

  public final boolean isStructStart() {
    return false;
  }

  public final boolean isNumeric() {
    return false;
  }
}
