package org.apache.spark.sql.delta.util;

public class PathWithFileSystem {
}
