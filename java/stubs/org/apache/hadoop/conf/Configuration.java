package org.apache.hadoop.conf;

public class Configuration {}
