package com.fasterxml.jackson.databind;

public abstract class JsonNode {
  public JsonNode get(String field) {
    return null;
  }

  public String asText() {
    return null;
  }
}
