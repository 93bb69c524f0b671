package org.apache.hadoop.fs.permission;

import org.apache.hadoop.conf.Configuration;

public class FsPermission {
  public static FsPermission getFileDefault() {
    return null;
  }

  public static FsPermission getUMask(Configuration conf) {
    return null;
  }

  public FsPermission applyUMask(FsPermission umask) {
    return null;
  }
}
