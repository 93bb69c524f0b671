package software.amazon.awssdk.services.dynamodb.model;

public final class AttributeValue {
  public static AttributeValue fromS(String text) {
    return null;
  }

  public static AttributeValue fromN(String number) {
    return null;
  }

  public String s() {
    return null;
  }

  public String n() {
    return null;
  }
}
