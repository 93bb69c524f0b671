package com.fasterxml.jackson.databind.node;

import com.fasterxml.jackson.databind.JsonNode;

public class ObjectNode extends JsonNode {
  public <T extends JsonNode> T setAll(ObjectNode other) {
    return null;
  }
}
