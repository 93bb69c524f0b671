package org.apache.hadoop.mapreduce;

public class JobID {
}
