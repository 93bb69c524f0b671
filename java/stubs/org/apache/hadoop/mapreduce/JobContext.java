package org.apache.hadoop.mapreduce;

public interface JobContext {
}
