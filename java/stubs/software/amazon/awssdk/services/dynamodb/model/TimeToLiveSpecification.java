package software.amazon.awssdk.services.dynamodb.model;

public final class TimeToLiveSpecification {
  public interface Builder {
    Builder enabled(Boolean is);

    Builder attributeName(String name);
  }
}
