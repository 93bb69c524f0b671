package org.apache.spark.sql.delta.actions;

public class SetTransaction implements Action {
}
