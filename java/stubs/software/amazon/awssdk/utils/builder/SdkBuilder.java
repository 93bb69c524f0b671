package software.amazon.awssdk.utils.builder;

public interface SdkBuilder<B extends SdkBuilder<B, C>, C> {
  C build();
}
