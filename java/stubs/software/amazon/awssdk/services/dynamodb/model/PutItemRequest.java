package software.amazon.awssdk.services.dynamodb.model;

import java.util.Map;

public final class PutItemRequest {
  public interface Builder {
    Builder tableName(String name);

    Builder item(Map<String, AttributeValue> item);

    Builder conditionExpression(String expression);
  }
}
