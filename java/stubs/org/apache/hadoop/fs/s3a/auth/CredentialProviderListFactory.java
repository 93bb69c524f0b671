package org.apache.hadoop.fs.s3a.auth;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.s3a.AWSCredentialProviderList;

public final class CredentialProviderListFactory {
  public static AWSCredentialProviderList createAWSCredentialProviderList(URI binding, Configuration conf)
      throws IOException {
    return null;
  }
}
