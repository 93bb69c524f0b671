package org.apache.hadoop.fs;

import java.io.DataOutputStream;
import java.io.OutputStream;

public class FSDataOutputStream extends DataOutputStream {
  public FSDataOutputStream(OutputStream out) {
    super(out);
  }

  /** Public in Hadoop; its answer is of no use here. */
  public Abortable.AbortableResult abort() {
    return null;
  }
}
