package software.amazon.awssdk.core.exception;

public class SdkException extends RuntimeException {
  private static final long serialVersionUID = 1;
}
