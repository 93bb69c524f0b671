package org.apache.hadoop.security;

public class AccessControlException extends java.io.IOException {
  private static final long serialVersionUID = 1L;
}
