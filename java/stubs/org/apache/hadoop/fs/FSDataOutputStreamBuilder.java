package org.apache.hadoop.fs;

public abstract class FSDataOutputStreamBuilder<S extends FSDataOutputStream, B extends FSDataOutputStreamBuilder<S, B>>
    implements FSBuilder<S, B> {
  public B overwrite(boolean overwrite) {
    return null;
  }

  public B recursive() {
    return null;
  }
}
