package software.amazon.awssdk.services.dynamodb.model;

public final class DescribeTableResponse {
  public TableDescription table() {
    return null;
  }
}
