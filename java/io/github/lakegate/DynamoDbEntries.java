package io.github.lakegate;

import java.io.IOException;
import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.s3a.auth.CredentialProviderListFactory;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbClientBuilder;
import software.amazon.awssdk.services.dynamodb.model.AttributeValue;
import software.amazon.awssdk.services.dynamodb.model.ConditionalCheckFailedException;
import software.amazon.awssdk.services.dynamodb.model.ResourceInUseException;
import software.amazon.awssdk.services.dynamodb.model.ResourceNotFoundException;

/** The entries of commits in one table of DynamoDB, with the attributes, settings and defaults of Delta's S3DynamoDBLogStore. */
final class DynamoDbEntries {
  /** The entry of one commit. `expires`: seconds since 1970 after which DynamoDB may delete it; 0: it does not expire. */
  record Entry(String name, String aside, boolean isComplete, long expires) {}

  private static final String[] PREFIXES = {"spark.io.delta.storage.S3DynamoDBLogStore.", "io.delta.storage.S3DynamoDBLogStore."};
  private static final String ENDPOINT = "spark.lakegate.dynamodb.endpoint"; // of a server other than Amazon's
  private static final String ON_DEMAND = "spark.lakegate.dynamodb.onDemand"; // billing of a table that is created
  private static final int READY_WAIT_S = 60;
  private static final Map<String, DynamoDbEntries> KNOWN = new ConcurrentHashMap<>();

  private final DynamoDbClient client;
  private final String table;
  private final String region;
  private final long ttl; // seconds; 0: complete entries are kept

  private DynamoDbEntries(FileSystem files, Configuration settings, String table, String region) throws IOException {
    this.table = table;
    this.region = region;
    String given = setting(settings, "ddb.ttl", "86400");
    ttl = given.equals("never") ? 0 : Long.parseLong(given);
    if (ttl < 3600 && ttl != 0) throw new IOException("lakegate: ddb.ttl of " + ttl + " s is too short: a commit under way could be lost; at least 3600");
    Configuration conf = new Configuration(files.getConf()); // with the settings of its bucket
    String provider = setting(settings, "credentials.provider", "");
    // Delta's default belongs to an SDK that is not here; we use its counterpart, the provider with which S3 itself is accessed.
    if (!provider.isEmpty() && !provider.endsWith(".DefaultAWSCredentialsProviderChain")) conf.set("fs.s3a.aws.credentials.provider", provider);
    DynamoDbClientBuilder building = DynamoDbClient.builder();
    building.region(Region.of(region));
    building.credentialsProvider(CredentialProviderListFactory.createAWSCredentialProviderList(files.getUri(), conf));
    String endpoint = settings.get(ENDPOINT);
    if (endpoint != null) building.endpointOverride(URI.create(endpoint));
    client = building.build();
    boolean isOnDemand = "true".equals(settings.get(ON_DEMAND));
    long reads = Long.parseLong(setting(settings, "provisionedThroughput.rcu", "5"));
    long writes = Long.parseLong(setting(settings, "provisionedThroughput.wcu", "5"));
    require(isOnDemand, reads, writes);
  }

  static DynamoDbEntries of(FileSystem files, Configuration settings) throws IOException {
    String table = setting(settings, "ddb.tableName", "delta_log");
    String region = setting(settings, "ddb.region", "us-east-1");
    String key = table + " " + region + " " + files.getUri() + " " + settings.get(ENDPOINT) + " " + setting(settings, "credentials.provider", "");
    synchronized (KNOWN) {
      if (!KNOWN.containsKey(key)) KNOWN.put(key, new DynamoDbEntries(files, settings, table, region));
      return KNOWN.get(key);
    }
  }

  /** Makes the entry of a commit that was begun; returns false if there is one. */
  boolean enter(String path, String name, String aside) throws IOException {
    Map<String, AttributeValue> item = item(path, name, aside, false);
    try {
      asked("PutItem", () -> client.putItem(put -> put.tableName(table).item(item).conditionExpression("attribute_not_exists(fileName)")));
      return true;
    } catch (ConditionalCheckFailedException taken) {
      return false;
    }
  }

  /** The commit has its name; its entry may expire later. */
  void complete(String path, String name, String aside) throws IOException {
    Map<String, AttributeValue> item = item(path, name, aside, true);
    if (ttl > 0) item.put("expireTime", AttributeValue.fromN(Long.toString(now() + ttl)));
    asked("PutItem", () -> client.putItem(put -> put.tableName(table).item(item)));
  }

  /** Removes an entry whose version another commit has, unless another process has completed it. */
  void withdraw(String path, String name, String aside) throws IOException {
    Map<String, AttributeValue> ours = Map.of(":aside", AttributeValue.fromS(aside), ":no", AttributeValue.fromS("false"));
    try {
      asked("DeleteItem", () -> client.deleteItem(delete -> delete.tableName(table).key(key(path, name)).conditionExpression("tempPath = :aside AND complete = :no").expressionAttributeValues(ours)));
    } catch (ConditionalCheckFailedException changed) {
      // The entry names an existing commit, which is all that an entry states.
    }
  }

  /** Removes an entry, whatever it states: for a person who has looked at it. */
  void remove(String path, String name) throws IOException {
    asked("DeleteItem", () -> client.deleteItem(delete -> delete.tableName(table).key(key(path, name))));
  }

  Entry get(String path, String name) throws IOException {
    Map<String, AttributeValue> item = asked("GetItem", () -> client.getItem(get -> get.tableName(table).key(key(path, name)).consistentRead(true))).item();
    return item.isEmpty() ? null : entry(item);
  }

  /** The entry of the highest version that has one, or null. */
  Entry last(String path) throws IOException {
    Map<String, AttributeValue> values = Map.of(":path", AttributeValue.fromS(path));
    List<Map<String, AttributeValue>> items = asked("Query", () -> client.query(query -> query.tableName(table).keyConditionExpression("tablePath = :path").expressionAttributeValues(values).consistentRead(true).scanIndexForward(false).limit(1))).items();
    return items.isEmpty() ? null : entry(items.get(0));
  }

  /** True if the entry, and those after it, expire far in the future, whatever the clocks of their drivers. */
  boolean isFresh(Entry entry) {
    return !entry.isComplete() || entry.expires() == 0 || entry.expires() > now() + ttl / 2;
  }

  IOException fault(String what, String advice) {
    return new IOException("lakegate: " + what + " (DynamoDB table " + table + " in " + region + "); nothing was written. " + advice);
  }

  @SuppressWarnings("unchecked") // arrays of functions, as the client's API requires
  private void require(boolean isOnDemand, long reads, long writes) throws IOException {
    boolean isMade = false;
    for (int second = 0; second < READY_WAIT_S; second++) {
      try {
        String status = asked("DescribeTable", () -> client.describeTable(describe -> describe.tableName(table))).table().tableStatusAsString();
        if (status.equals("ACTIVE") || status.equals("UPDATING")) {
          if (isMade) asked("UpdateTimeToLive", () -> client.updateTimeToLive(update -> update.tableName(table).timeToLiveSpecification(spec -> spec.enabled(true).attributeName("expireTime"))));
          return;
        }
      } catch (ResourceNotFoundException none) {
        try {
          asked("CreateTable", () -> client.createTable(create -> {
            create.tableName(table);
            create.attributeDefinitions(one -> one.attributeName("tablePath").attributeType("S"), one -> one.attributeName("fileName").attributeType("S"));
            create.keySchema(one -> one.attributeName("tablePath").keyType("HASH"), one -> one.attributeName("fileName").keyType("RANGE"));
            if (isOnDemand) create.billingMode("PAY_PER_REQUEST");
            else create.provisionedThroughput(units -> units.readCapacityUnits(reads).writeCapacityUnits(writes));
          }));
          isMade = true;
          continue;
        } catch (ResourceInUseException another) {
          // another process is creating it
        }
      }
      Gate.pause(1000);
    }
    throw fault("the table of entries did not become ready in " + READY_WAIT_S + " s", "Look at it in the console of DynamoDB");
  }

  /** DynamoDB's answer; an error from which a caller cannot continue becomes an IOException that names the action. */
  private <R> R asked(String action, Supplier<R> ask) throws IOException {
    try {
      return ask.get();
    } catch (ConditionalCheckFailedException | ResourceInUseException expected) {
      throw expected;
    } catch (SdkException error) {
      if (error instanceof ResourceNotFoundException && action.equals("DescribeTable")) throw error;
      throw new IOException("lakegate: DynamoDB did not " + action + " on table " + table + " in " + region + ": " + error.getMessage(), error);
    }
  }

  private Map<String, AttributeValue> item(String path, String name, String aside, boolean isComplete) {
    Map<String, AttributeValue> item = new HashMap<>(key(path, name));
    item.put("tempPath", AttributeValue.fromS(aside));
    item.put("complete", AttributeValue.fromS(Boolean.toString(isComplete))); // a text, as Delta writes it
    return item;
  }

  private static Map<String, AttributeValue> key(String path, String name) {
    return Map.of("tablePath", AttributeValue.fromS(path), "fileName", AttributeValue.fromS(name));
  }

  private static Entry entry(Map<String, AttributeValue> item) {
    AttributeValue expires = item.get("expireTime");
    return new Entry(item.get("fileName").s(), item.get("tempPath").s(), "true".equals(item.get("complete").s()), expires == null ? 0 : Long.parseLong(expires.n()));
  }

  private static long now() {
    return System.currentTimeMillis() / 1000;
  }

  private static String setting(Configuration conf, String name, String otherwise) throws IOException {
    String ours = conf.get(PREFIXES[0] + name);
    String hadoops = conf.get(PREFIXES[1] + name);
    if (ours != null && hadoops != null && !ours.equals(hadoops)) throw new IOException("lakegate: " + PREFIXES[0] + name + " and " + PREFIXES[1] + name + " differ; nothing was done. Set one of them");
    return ours != null ? ours : hadoops != null ? hadoops : otherwise;
  }
}
