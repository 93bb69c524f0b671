package software.amazon.awssdk.services.dynamodb.model;

public final class DescribeTableRequest {
  public interface Builder {
    Builder tableName(String name);
  }
}
