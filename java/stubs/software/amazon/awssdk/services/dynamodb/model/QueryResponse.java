package software.amazon.awssdk.services.dynamodb.model;

import java.util.List;
import java.util.Map;

public final class QueryResponse {
  public List<Map<String, AttributeValue>> items() {
    return null;
  }
}
