package software.amazon.awssdk.auth.credentials;

public interface AwsCredentialsProvider {}
