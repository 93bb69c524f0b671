package org.apache.hadoop.fs;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;

public class FSDataInputStream extends DataInputStream {
  public FSDataInputStream(InputStream in) {
    super(in);
  }

  public void readFully(long position, byte[] buffer) throws IOException {
    throw new UnsupportedOperationException("stub");
  }
}
