package software.amazon.awssdk.services.dynamodb;

import java.util.function.Consumer;
import software.amazon.awssdk.services.dynamodb.model.CreateTableRequest;
import software.amazon.awssdk.services.dynamodb.model.CreateTableResponse;
import software.amazon.awssdk.services.dynamodb.model.DeleteItemRequest;
import software.amazon.awssdk.services.dynamodb.model.DeleteItemResponse;
import software.amazon.awssdk.services.dynamodb.model.DescribeTableRequest;
import software.amazon.awssdk.services.dynamodb.model.DescribeTableResponse;
import software.amazon.awssdk.services.dynamodb.model.GetItemRequest;
import software.amazon.awssdk.services.dynamodb.model.GetItemResponse;
import software.amazon.awssdk.services.dynamodb.model.PutItemRequest;
import software.amazon.awssdk.services.dynamodb.model.PutItemResponse;
import software.amazon.awssdk.services.dynamodb.model.QueryRequest;
import software.amazon.awssdk.services.dynamodb.model.QueryResponse;
import software.amazon.awssdk.services.dynamodb.model.UpdateTimeToLiveRequest;
import software.amazon.awssdk.services.dynamodb.model.UpdateTimeToLiveResponse;

public interface DynamoDbClient {
  static DynamoDbClientBuilder builder() {
    return null;
  }

  PutItemResponse putItem(Consumer<PutItemRequest.Builder> request);

  GetItemResponse getItem(Consumer<GetItemRequest.Builder> request);

  QueryResponse query(Consumer<QueryRequest.Builder> request);

  DeleteItemResponse deleteItem(Consumer<DeleteItemRequest.Builder> request);

  CreateTableResponse createTable(Consumer<CreateTableRequest.Builder> request);

  DescribeTableResponse describeTable(Consumer<DescribeTableRequest.Builder> request);

  UpdateTimeToLiveResponse updateTimeToLive(Consumer<UpdateTimeToLiveRequest.Builder> request);
}
