package org.apache.spark.sql.types;

public class DecimalType extends DataType {
}
