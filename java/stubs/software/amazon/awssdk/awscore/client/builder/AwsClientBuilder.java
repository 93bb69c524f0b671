package software.amazon.awssdk.awscore.client.builder;

import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.core.client.builder.SdkClientBuilder;
import software.amazon.awssdk.regions.Region;

public interface AwsClientBuilder<B extends AwsClientBuilder<B, C>, C> extends SdkClientBuilder<B, C> {
  B region(Region region);

  B credentialsProvider(AwsCredentialsProvider provider);
}
