package org.apache.hadoop.mapred;

public class JobID extends org.apache.hadoop.mapreduce.JobID {
}
