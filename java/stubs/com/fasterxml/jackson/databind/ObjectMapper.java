package com.fasterxml.jackson.databind;

import java.io.IOException;

public class ObjectMapper {
  public JsonNode readTree(String text) throws IOException {
    return null;
  }

  public String writeValueAsString(Object value) throws IOException {
    return null;
  }

  public ObjectMapper() {}

  public native JsonNode missingNode();
}
