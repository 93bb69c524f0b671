package software.amazon.awssdk.services.dynamodb.model;

import java.util.Map;

public final class GetItemResponse {
  public Map<String, AttributeValue> item() {
    return null;
  }
}
