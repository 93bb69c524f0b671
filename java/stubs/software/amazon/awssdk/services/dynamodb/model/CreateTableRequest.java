package software.amazon.awssdk.services.dynamodb.model;

import java.util.function.Consumer;

public final class CreateTableRequest {
  @SuppressWarnings("unchecked")
  public interface Builder {
    Builder tableName(String name);

    Builder attributeDefinitions(Consumer<AttributeDefinition.Builder>... definitions);

    Builder keySchema(Consumer<KeySchemaElement.Builder>... elements);

    Builder billingMode(String mode);

    Builder provisionedThroughput(Consumer<ProvisionedThroughput.Builder> throughput);
  }
}
