package org.apache.spark;

public interface Partition {
}
