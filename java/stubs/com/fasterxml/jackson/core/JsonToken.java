package com.fasterxml.jackson.core;

public enum JsonToken {
  START_OBJECT,
  END_OBJECT,
  START_ARRAY,
  END_ARRAY,
  FIELD_NAME,
  VALUE_NULL
}
