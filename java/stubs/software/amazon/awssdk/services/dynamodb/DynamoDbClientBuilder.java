package software.amazon.awssdk.services.dynamodb;

import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;

public interface DynamoDbClientBuilder extends AwsClientBuilder<DynamoDbClientBuilder, DynamoDbClient> {}
