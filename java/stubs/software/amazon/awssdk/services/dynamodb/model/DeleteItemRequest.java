package software.amazon.awssdk.services.dynamodb.model;

import java.util.Map;

public final class DeleteItemRequest {
  public interface Builder {
    Builder tableName(String name);

    Builder key(Map<String, AttributeValue> key);

    Builder conditionExpression(String expression);

    Builder expressionAttributeValues(Map<String, AttributeValue> values);
  }
}
