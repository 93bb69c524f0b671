package org.apache.spark;

public class SparkContext {
}
