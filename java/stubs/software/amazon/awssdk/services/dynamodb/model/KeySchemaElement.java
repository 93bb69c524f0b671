package software.amazon.awssdk.services.dynamodb.model;

public final class KeySchemaElement {
  public interface Builder {
    Builder attributeName(String name);

    Builder keyType(String type);
  }
}
