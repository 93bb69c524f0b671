package software.amazon.awssdk.services.dynamodb.model;

import software.amazon.awssdk.core.exception.SdkException;

public final class ConditionalCheckFailedException extends SdkException {
  private static final long serialVersionUID = 1;
}
