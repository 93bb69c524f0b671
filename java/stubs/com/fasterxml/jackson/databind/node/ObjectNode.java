package com.fasterxml.jackson.databind.node;

import com.fasterxml.jackson.databind.JsonNode;

public class ObjectNode extends JsonNode {
  public <T extends JsonNode> T setAll(ObjectNode other) {
    return null;
  }

  public native JsonNode get(String a);
  public native ObjectNode put(String a, String b);
}
