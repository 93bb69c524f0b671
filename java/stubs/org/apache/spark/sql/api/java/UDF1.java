package org.apache.spark.sql.api.java;

import java.io.Serializable;

public interface UDF1<T1, R> extends Serializable {
  R call(T1 one) throws Exception;
}
