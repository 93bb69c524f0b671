package org.apache.spark;

public abstract class TaskContext {
}
