package software.amazon.awssdk.services.dynamodb.model;

public final class AttributeDefinition {
  public interface Builder {
    Builder attributeName(String name);

    Builder attributeType(String type);
  }
}
