package software.amazon.awssdk.services.dynamodb.model;

public final class PutItemResponse {}
