package org.apache.spark.sql.types;

public class DataTypes {
  public static final DataType LongType = null;
  public static final DataType StringType = null;

  public static final DataType ByteType = null;
  public static final DataType DateType = null;
  public static final DataType IntegerType = null;
  public static final DataType ShortType = null;

  public static final DataType BooleanType = null;
  public static final DataType TimestampNTZType = null;
  public static final DataType TimestampType = null;
}
