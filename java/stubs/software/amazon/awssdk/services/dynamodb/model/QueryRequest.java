package software.amazon.awssdk.services.dynamodb.model;

import java.util.Map;

public final class QueryRequest {
  public interface Builder {
    Builder tableName(String name);

    Builder keyConditionExpression(String expression);

    Builder expressionAttributeValues(Map<String, AttributeValue> values);

    Builder consistentRead(Boolean is);

    Builder scanIndexForward(Boolean is);

    Builder limit(Integer items);
  }
}
