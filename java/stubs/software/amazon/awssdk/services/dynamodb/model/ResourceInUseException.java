package software.amazon.awssdk.services.dynamodb.model;

import software.amazon.awssdk.core.exception.SdkException;

public final class ResourceInUseException extends SdkException {
  private static final long serialVersionUID = 1;
}
