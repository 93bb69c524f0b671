package software.amazon.awssdk.services.dynamodb.model;

import java.util.Map;

public final class GetItemRequest {
  public interface Builder {
    Builder tableName(String name);

    Builder key(Map<String, AttributeValue> key);

    Builder consistentRead(Boolean is);
  }
}
