package software.amazon.awssdk.services.dynamodb.model;

public final class ProvisionedThroughput {
  public interface Builder {
    Builder readCapacityUnits(Long units);

    Builder writeCapacityUnits(Long units);
  }
}
