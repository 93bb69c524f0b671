package org.apache.hadoop.conf;

public class Configuration {
  public Configuration(Configuration other) {}

  public void set(String name, String value) {}

  public String get(String name) {
    return null;
  }

  public String get(String name, String otherwise) {
    return null;
  }

  public long getLong(String name, long otherwise) {
    return 0;
  }
}
