package org.apache.spark;

public class TaskContextImpl extends TaskContext {
}
