package software.amazon.awssdk.core.client.builder;

import java.net.URI;
import software.amazon.awssdk.utils.builder.SdkBuilder;

public interface SdkClientBuilder<B extends SdkClientBuilder<B, C>, C> extends SdkBuilder<B, C> {
  B endpointOverride(URI endpoint);
}
