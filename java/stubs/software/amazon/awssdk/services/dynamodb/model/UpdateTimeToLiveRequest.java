package software.amazon.awssdk.services.dynamodb.model;

import java.util.function.Consumer;

public final class UpdateTimeToLiveRequest {
  public interface Builder {
    Builder tableName(String name);

    Builder timeToLiveSpecification(Consumer<TimeToLiveSpecification.Builder> specification);
  }
}
